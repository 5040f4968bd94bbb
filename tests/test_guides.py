"""Every block of Python in the guides runs as it stands, and does what the page says; those that train are slow."""

from __future__ import annotations

import math
import re
import sys
import types
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from warm_process import free_port

from structured_init import attention_sites, depthwise_conv_sites

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted([*(DOCS / "start").glob("*.md"), *(DOCS / "guides").glob("*.md"), DOCS / "index.md"])


@pytest.fixture(autouse=True)
def known_attention():
    """Forget the classes that a page registers."""
    from structured_init.hosts.known import ATTENTION

    before = dict(vars(ATTENTION))
    copies = {name: dict(value) if isinstance(value, dict) else value for name, value in before.items()}
    yield
    vars(ATTENTION).update(copies)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run all blocks of a page in order, in an empty folder; give the names that they define and what they print."""
    monkeypatch.chdir(tmp_path)

    def run_page(name: str) -> tuple[dict, str]:
        module = types.ModuleType(f"page_{Path(name).stem}")  # timm asks where a registered function stands
        monkeypatch.setitem(sys.modules, module.__name__, module)
        torch.manual_seed(0)
        text = (DOCS / name).read_text(encoding="utf-8")
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if "from peft" in block and find_spec("peft") is None:
                continue
            exec(compile(block, name, "exec"), vars(module))
        return vars(module), capsys.readouterr().out

    return run_page


def diagonal(site, first: str, second: str) -> float:
    """Mean diagonal of the product of two of a site's matrices, summed over heads."""
    return (getattr(site, first) @ getattr(site, second)).sum(0).diagonal().mean().item()


def test_the_first_steps_end_in_two_pictures_of_a_mimetic_model(run):
    names, printed = run("start/first_steps.md")
    page = (DOCS / "start/first_steps.md").read_text("utf-8")
    (shown,) = re.findall(r"^```\n(Mimetic.*?)\n```", page, re.DOTALL | re.MULTILINE)
    assert shown in printed
    assert {path.name for path in Path().glob("*.png")} == {"attention.png", "weights.png"}
    for site in attention_sites(names["model"]):
        assert diagonal(site, "value", "output") == pytest.approx(-0.4, abs=0.1)
    for site in attention_sites(names["plain"]):
        assert diagonal(site, "value", "output") == pytest.approx(0, abs=0.05)


def test_the_first_page_prints_a_report(run):
    _, printed = run("index.md")
    assert "transformer.h.0" in printed


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of PEFT and Lightning
def test_each_recipe_is_short_and_mends_its_problem(run, monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    try:
        names, printed = run("guides/problems.md")
        heads = [site.query.shape for site in attention_sites(names["sharded"])]
    finally:
        torch.distributed.destroy_process_group()
    assert heads == [(4, 64, 16)] * 4
    first, faulty = (float(number) for number in re.findall(r"(?:^loss|the fault) ([0-9.]+)", printed, re.MULTILINE))
    assert first == pytest.approx(math.log(512), rel=0.05)
    assert faulty > 5 * first
    for site in attention_sites(names["model"]):  # the last of the page's models: from the meta device
        assert diagonal(site, "value", "output") == pytest.approx(-0.4, abs=0.1)
    data = torch.utils.data.DataLoader([(torch.zeros(3, 224, 224), 1)])
    late = names["Late"]()
    late.training_step = lambda batch, batch_idx: torch.nn.functional.cross_entropy(late.network(batch[0]), batch[1])
    late.configure_optimizers = lambda: torch.optim.SGD(late.parameters(), lr=0.0)
    names["trainer"].fit(late, data)
    for site in attention_sites(late.network):
        assert diagonal(site, "value", "output") == pytest.approx(-0.4, abs=0.1)
    if find_spec("peft"):
        assert len(names["runs"]) == 25
        assert set(names["runs"]["arm"]) == {"True", "gaussian", "orthogonal", "pissa", "olora"}


def test_a_vit_of_either_library_has_its_attention_written(run):
    names, printed = run("guides/vit.md")
    assert "Mimetic" in printed
    by_its_registered_name = names["model"]
    sites = [*attention_sites(names["vit"]), *attention_sites(by_its_registered_name)]
    assert len(sites) == 4
    for site in sites:
        assert diagonal(site, "value", "output") == pytest.approx(-0.4, abs=0.1)


@pytest.mark.slow
def test_gpt_has_heads_on_the_tokens_before_and_llama_an_induction_head(run):
    names, printed = run("guides/gpt.md")
    assert "offset" in printed
    assert "Induction" in printed
    assert names["report"].attention["transformer.h.0.attn"]
    groups = [names[each].param_groups for each in ("muon", "adamw")]
    hidden, rest = ({id(each) for group in part for each in group["params"]} for part in groups)
    assert len(hidden) == 14
    assert not hidden & rest
    assert hidden | rest == {id(each) for each in names["llama"].parameters()}


def test_mamba_remembers_longer_than_before(run, tmp_path):
    names, printed = run("guides/mamba.md")
    assert "tokens before, 2,066 after" in printed
    before, after = names["report"].measures["backbone.layers.0.mixer"]["half-life (tokens), median"]
    assert 10 * before < after == pytest.approx(math.log(2) * math.exp(8), rel=1e-3)
    without = (
        names["fresh"].backbone.layers[0].mixer
    )  # a component that is left out is the library's, not an earlier call's
    assert without.conv1d.weight[..., :-1].all()
    assert (without.A_log < -7).all()
    assert (tmp_path / "implicit_attention.png").stat().st_size > 5000


@pytest.mark.slow
def test_convnet_gets_filters_that_are_frozen_where_asked(run):
    names, printed = run("guides/convnet.md")
    near, far = (float(number) for number in re.findall(r"fn\.0: radius ([\d.]+) pixels, correlation", printed))
    assert near < far
    filters = 2 * 32 * 9 * 9  # layers × channels × kernel
    assert names["report"].total_parameters - names["report"].trainable_parameters in (filters, filters + 2 * 32)
    assert len(depthwise_conv_sites(names["deeper"])) == 4


@pytest.mark.slow
def test_a_plain_loop_trains_and_resumes_over_its_initialization(run):
    names, printed = run("guides/plain_loop.md")
    assert torch.isfinite(names["loss"])
    assert Path("init_report.json").is_file()
    assert Path("last.pt").is_file()
    assert Path("attention.png").is_file()
    distances = re.findall(r"(before|after) blocks\.\d\.attn (.+)", printed)
    assert len({distance for _, distance in distances}) == len(distances) == 4


@pytest.mark.slow
def test_the_hugging_face_trainer_trains_what_was_initialized(run):
    names, _ = run("guides/huggingface_trainer.md")
    assert names["result"].training_loss > 0
    assert names["result"].global_step == 2
    assert torch.isfinite(names["own"](**names["batch"]).loss)
    given, built = (model.transformer.h[0].attn.c_attn.weight for model in (names["model"], names["build"]()))
    assert given.shape == built.shape


def test_attention_of_ones_own_is_found_and_described_alike(run):
    names, printed = run("guides/own_model.md")
    assert printed.count("AttentionLayout(") == 2
    assert float(re.search(r"tensor\(([\d.]+)", printed)[1]) > 0.2
    for site in attention_sites(names["model"]):
        assert diagonal(site, "value", "output") == pytest.approx(-0.4, abs=0.15)
    tokens, layer, site = torch.randn(3, 32), names["model"].layers[0], attention_sites(names["model"])[0]
    query, key, _ = layer.to_qkv(tokens).reshape(3, 3, 2, 16).unbind(1)
    torch.testing.assert_close(tokens @ site.query[1], query[:, 1])
    torch.testing.assert_close(tokens @ site.key[0], key[:, 0])


def test_every_page_with_python_is_run_here():
    with_python = {page.relative_to(DOCS).as_posix() for page in PAGES if "```python" in page.read_text("utf-8")}
    assert with_python == set(re.findall(r'run\("([a-z_/]+\.md)"\)', Path(__file__).read_text("utf-8")))
