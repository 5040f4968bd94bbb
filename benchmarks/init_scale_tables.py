"""From measured layers to whole models: what :mod:`benchmarks.init_scale` prints.

Letters: D width, N ranks.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Any

from benchmarks.collectives import sharded_bytes

Record = dict[str, Any]
INTRODUCTION = (
    "# What an initialization costs at scale",
    "",
    "    python -m benchmarks.init_scale --output benchmarks/results",
    "",
    "Processor seconds of one thread, and the peak of a process' memory, of single layers at their real shapes. Whole",
    "models are counted up from layers, traffic from the bytes of collectives. `measured in parts`: one group of heads",
    "and the values, counted up. The table of exponents says by how much a power law from smaller widths would have",
    "missed what was measured.",
)
MEMORY = (
    "A layer's size is that of its parameters in float32. Memory held is what a process grows by where malloc hands",
    "back what is freed; by glibc's own settings it keeps some of that for later, and grows by the last column.",
)
CHECKED = "Power laws of the smaller widths, checked on the largest of each curve, and of all, on the layer of 8192:"
NODES = (8, 64, 512)  # ranks of the tables
ITEMSIZE = 2  # bfloat16
LINK = 50e9  # bytes a second: one network card of 400 Gbit/s per rank
GROUP_WIDTH = 1024  # width of a replica per group of heads


def power_law(points: dict[int, float]) -> tuple[float, float]:
    """Return a and b of seconds = a · widthᵇ, by least squares of the logarithms."""
    logarithms = [(math.log(width), math.log(seconds)) for width, seconds in points.items()]
    x, y = (sum(column) / len(points) for column in zip(*logarithms, strict=True))
    slope = sum((u - x) * (v - y) for u, v in logarithms) / sum((u - x) ** 2 for u, _ in logarithms)
    return math.exp(y - slope * x), slope


def predicted(points: dict[int, float], width: int) -> float:
    """Return the seconds that the power law of some points gives at another width."""
    factor, exponent = power_law(points)
    return factor * width**exponent


def points_of(rows: Record, part: str) -> dict[int, float]:
    """Return width → median seconds of one part of a curve."""
    return {int(width): median(row[part]["seconds"]) for width, row in rows.items() if part in row}


def layer_seconds(row: Record, groups: int) -> float:
    """Return the seconds of one layer, measured whole or in parts."""
    if "layer" in row:
        return median(row["layer"]["seconds"])
    return groups * median(row["group"]["seconds"]) + median(row["values"]["seconds"])


def extrapolated(rows: Record, width: int) -> float:
    """Return the seconds of one layer of a replica at a width that was not measured."""
    if all("group" in row for row in rows.values()):
        groups = width // GROUP_WIDTH
        return groups * predicted(points_of(rows, "group"), width) + predicted(points_of(rows, "values"), width)
    return predicted(points_of(rows, "layer"), width)


def counted_up(first: float, third: float, layers: int) -> float:
    """Return the seconds of a whole network, from those with one layer and with three."""
    return first + (layers - 1) * (third - first) / 2


def set_shapes(names: set[str], sizes: list[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the shapes of what an initialization sets in one layer of a Llama, and outside the layers.

    Args:
        names: what it set in a replica.
        sizes: width, heads, key–value heads, MLP, layers, vocabulary.
    """
    width, heads, keys, mlp, _, vocab = sizes
    inner, shared = heads * 128, keys * 128
    shapes = {
        "q_proj": (inner, width), "k_proj": (shared, width), "v_proj": (shared, width), "o_proj": (width, inner),
        "gate_proj": (mlp, width), "up_proj": (mlp, width), "down_proj": (width, mlp), "lm_head": (vocab, width),
    }  # fmt: skip
    found = {kind: shape for kind, shape in shapes.items() if any(f"{kind}." in name for name in names)}
    outside = [found.pop("lm_head")] if "lm_head" in found else []
    return list(found.values()), outside


def large(record: Record, name: str = "70B") -> dict[str, Record]:
    """Return time, memory and traffic of every initialization on one Llama."""
    sizes = record["llamas"][name]["sizes"]
    width, keys, layers = sizes[0], sizes[2], sizes[4]
    found: dict[str, Record] = {}
    initializations = record["llamas"][name]["initializations"]
    curve = record.get("curve", {}) if name == "70B" else {}  # of its proportions
    for initializer, row in initializations.items():
        names = {one for part in row.values() for one in part["set"]}
        inside, outside = set_shapes(names, sizes)
        in_layer, beyond = (sum(map(math.prod, shapes)) for shapes in (inside, outside))
        seconds = layer_seconds(row, keys)
        found[initializer] = {
            "how": "measured" if "layer" in row else "measured in parts",
            "seconds": seconds,
            "hours": seconds * layers * (1 + beyond / in_layer / layers) / 3600,
            "numbers": in_layer * layers + beyond,
            "peak": _peak(row, curve.get(initializer, {}), width),
            "traffic": {
                ranks: [sharded_bytes(inside * layers + outside, ITEMSIZE, ranks, rank) for rank in (0, 1)]
                for ranks in NODES
            },
        }
    return found


def _peak(row: Record, rows: Record, width: int) -> float | None:
    """Return the peak memory of one layer, measured at its shape or, all matrices being D × D, by D²."""
    if "layer" in row:
        return row["layer"]["peak"]
    whole = {int(at): row["layer"]["peak"] for at, row in rows.items() if "layer" in row}
    return max(whole.items())[1] * (width / max(whole)) ** 2 if whole else None


def tables(record: Record) -> str:
    """Return all tables that the record has numbers for."""
    lines = [*INTRODUCTION, "", ", ".join(f"{name} {value}" for name, value in record["surroundings"].items())]
    if "networks" in record:
        lines += ["", "## Published networks: the whole call, one thread", "", *network_rows(record["networks"])]
    if "curve" in record:
        lines += ["", "## One layer of Llama-70B's proportions at smaller widths", "", *curve_rows(record["curve"])]
        lines += ["", CHECKED, "", *check_rows(record["curve"], record.get("llamas", {}).get("70B"))]
    for name in record.get("llamas", {}):
        lines += ["", f"## Llama-{name}: time and memory", "", *large_rows(large(record, name))]
        lines += ["", f"## Llama-{name}: traffic under FSDP2, bfloat16 parameters", ""]
        lines += traffic_rows(large(record, name))
    if "traffic" in record:
        lines += ["", "## Traffic: counted in a simulated group on one layer of width 1024, and the formula", ""]
        lines += counted_rows(record["traffic"])
    if "refused" in record:
        lines += ["", "## Initializations for which a Llama has no place", ""]
        lines += [f"- `{initializer}`: {message}" for initializer, message in record["refused"].items()]
    return "\n".join(lines)


def network_rows(networks: Record) -> list[str]:
    """Return a row per network and initialization."""
    rows = [
        "| network | layers | initialization | one more layer, s | whole, s | spread of three layers, s"
        " | held beyond the model at the peak, MB | in layers | growth of the process, in layers |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, network in networks.items():
        for initializer, depths in network["initializations"].items():
            one, three = depths["1"], depths["3"]
            first, third = median(one["seconds"]), median(three["seconds"])
            layer = 4 * (three["numbers"] - one["numbers"]) / 2
            whole = counted_up(first, third, network["layers"])
            held, grown = depths["held"], three["peak"]
            rows.append(
                f"| {name} | {network['layers']} | {initializer} | {(third - first) / 2:.3g} | {whole:.3g}"
                f" | {_spread(three['seconds'])} | {held / 1e6:.1f} | {held / layer:.2f} | {grown / layer:.2f} |"
            )
    return [*rows, "", *MEMORY]


def curve_rows(curve: Record) -> list[str]:
    """Return a row per initialization and width."""
    rows = [
        "| initialization | D | whole layer, s | one group of heads, s | values, s"
        " | parts / whole | peak / D², bytes |",
        "|---|---|---|---|---|---|---|",
    ]
    for initializer, widths in curve.items():
        for width, row in widths.items():
            cells = [
                f"{median(row[part]['seconds']):.3g}" if part in row else "" for part in ("layer", "group", "values")
            ]
            ratio = ""
            if {"layer", "group"} <= row.keys():
                parts = {part: value for part, value in row.items() if part != "layer"}
                ratio = f"{layer_seconds(parts, int(width) // GROUP_WIDTH) / layer_seconds(row, 1):.2f}"
            peak = f"{row['layer']['peak'] / int(width) ** 2:.1f}" if "layer" in row else ""
            rows.append(f"| {initializer} | {width} | {' | '.join(cells)} | {ratio} | {peak} |")
    return rows


def check_rows(curve: Record, llama: Record | None = None) -> list[str]:
    """Return, for every part, the exponent of all widths and how far the smaller ones are from the largest.

    Args:
        curve: of :mod:`benchmarks.init_scale`.
        llama: the network of the curve's proportions, to whose layer the fit of all widths is compared.
    """
    rows = [
        "| initialization | part | exponent | predicted / measured, at D"
        " | whole layer, predicted / measured, at the full D |",
        "|---|---|---|---|---|",
    ]
    for initializer, widths in curve.items():
        for part in ("group", "values") if any("group" in row for row in widths.values()) else ("layer",):
            points = points_of(widths, part)
            if len(points) < 2:
                continue
            largest, smaller = max(points), {width: points[width] for width in points if width < max(points)}
            check = f"{predicted(smaller, largest) / points[largest]:.2f}, {largest}" if len(smaller) > 1 else "–"
            full = (
                _missed(widths, initializer, llama)
                if llama is not None and initializer in llama["initializations"]
                else "–"
            )
            rows.append(f"| {initializer} | {part} | {power_law(points)[1]:.2f} | {check} | {full} |")
    return rows


def _missed(widths: Record, initializer: str, llama: Record) -> str:
    width, _, keys, *_ = llama["sizes"]
    return f"{extrapolated(widths, width) / layer_seconds(llama['initializations'][initializer], keys):.2f}, {width}"


def large_rows(initializations: dict[str, Record]) -> list[str]:
    """Return a row per initialization: seconds of a layer, hours of the model, memory."""
    rows = [
        "| initialization | one layer, s | how known | whole model, h | sets, 10⁹ | host memory beyond the shards, GB"
        f" | journal file per rank, GB, N = {NODES[1]} |",
        "|---|---|---|---|---|---|---|",
    ]
    for initializer, row in initializations.items():
        peak = "" if row["peak"] is None else f"{row['peak'] / 1e9:.2f}"
        journal = ITEMSIZE * row["numbers"] / NODES[1] / 1e9
        rows.append(
            f"| {initializer} | {row['seconds']:.3g} | {row['how']} | {row['hours']:.2f} | {row['numbers'] / 1e9:.2f}"
            f" | {peak} | {journal:.2f} |"
        )
    return rows


def traffic_rows(initializations: dict[str, Record]) -> list[str]:
    """Return a row per initialization: what a rank receives, and what rank 0 sends."""
    heads = " | ".join(f"a rank receives, N = {ranks} | rank 0 sends" for ranks in NODES)
    link = f"rank 0 sending at {LINK / 1e9:.0f} GB/s, N = {NODES[1]}, s"
    rows = [f"| initialization | {heads} | {link} |", "|---" * (2 + 2 * len(NODES)) + "|"]
    for initializer, row in initializations.items():
        cells = [
            f"{row['traffic'][ranks][1][0] / 1e9:.1f} | {row['traffic'][ranks][0][1] / 1e9:.1f}" for ranks in NODES
        ]
        rows.append(f"| {initializer} | {' | '.join(cells)} | {row['traffic'][NODES[1]][0][1] / LINK:.1f} |")
    return [*rows, "", "In GB; the seconds are a calculation for that link, not a measurement."]


def counted_rows(traffic: Record) -> list[str]:
    """Return a row per initialization and rank, and how far the formula is."""
    rows = [
        "| initialization | rank | received, MB | counted / formula | sent, MB | counted / formula |",
        "|---|---|---|---|---|---|",
    ]
    for initializer, ranks in traffic.items():
        for rank, row in ranks.items():
            cells = (f"{row[way] / 1e6:.3f} | {row[way] / row['formula'][way]:.4f}" for way in ("received", "sent"))
            rows.append(f"| {initializer} | {rank} | {' | '.join(cells)} |")
    return rows


def _spread(seconds: list[float]) -> str:
    return f"{min(seconds):.3g} – {max(seconds):.3g}, n = {len(seconds)}"
