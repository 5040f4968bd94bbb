import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from timm.models.convmixer import ConvMixer
from timm.models.vision_transformer import VisionTransformer
from torch.utils.data import DataLoader, TensorDataset

from comparison.plan.arms import Arm, parse_arms
from comparison.plan.comparison import Comparison, point_name
from comparison.plan.experiment import initializer_of, parse, values_of
from comparison.plan.fitting import Planner
from comparison.plan.roles import ENDINGS, with_controls
from comparison.runs.folder import Question, read_manifest
from lightning_modules.cli import main
from structured_init import (
    Default,
    FilterCovariance,
    Mimetic,
    Positions,
    SamePositions,
    Scrambled,
    Sharpened,
    StructuredInitError,
)
from structured_init.util.files import made_by

QUERY_KEY = Mimetic(value_output=False, positions="keep")


def comparison(folder, inits="default,sincos", **changes):
    arms = parse_arms(inits)
    return Comparison(**{"folder": folder, "experiment": ["vit_digits"], "arms": arms, "seeds": [0, 1], **changes})


def changed(value):
    """An arm that changes a value of the experiment."""
    return {"default": Arm("default", "default", changes={"init.x": value})}


def test_runs_are_listed_seed_by_seed_so_that_an_unfinished_comparison_is_paired(tmp_path):
    runs = comparison(tmp_path).runs()
    assert [(run.seed, run.arm) for run in runs] == [
        *((0, "default"), (0, "sincos"), (1, "default"), (1, "sincos")),
    ]
    assert len({run.folder for run in runs}) == 4
    drawn = [run.seed for run in runs if "--attention.figures=true" in run.arguments]
    assert drawn == [0, 0]  # the report shows one seed


def test_folders_follow_arm_point_learning_rate_and_seed(tmp_path):
    asked = comparison(tmp_path, "sincos", seeds=[3], grid={"data.fraction": ["0.5"]}, learning_rates=[5e-4])
    (run,) = asked.runs()
    assert run.folder == tmp_path / "runs" / "sincos" / "fraction_0.5" / "lr_0.0005" / "seed_3"
    assert run.beside(".log") == run.folder.parent / "seed_3.log"
    assert run.point == (("data.fraction", "0.5"),)
    assert not run.tested  # before its learning rate is chosen


def test_every_combination_of_the_grid_is_a_point(tmp_path):
    points = comparison(tmp_path, grid={"a.x": ["1", "2"], "b": ["3", "4"]}).points()
    assert points == [(("a.x", a), ("b", b)) for a in "12" for b in "34"]


def test_a_folder_of_configurations_is_crossed_with_the_initializations_and_a_wrong_name_is_answered(tmp_path):
    asked = comparison(tmp_path, "sincos", grid={"optim": ["muon", "moun"], "data.fraction": ["0.5"]})
    right, wrong = asked.points()
    words = asked.arm_arguments(asked.arms["sincos"], right, rate=0.01)
    assert "-c" == words[2] == words[4]
    assert (words[1], words[3], words[5]) == ("vit_digits", "optim/muon", "init/sincos")  # an arm may change it
    values = values_of(parse(words))
    assert values["model.optimizer.class_path"] == "timm.optim.Muon"
    assert (values["model.optimizer.lr"], values["data.fraction"]) == (0.01, 0.5)
    with pytest.raises(StructuredInitError, match="did you mean 'optim/muon'"):
        parse(asked.arm_arguments(asked.arms["sincos"], wrong))


@pytest.mark.parametrize(
    ("argument", "key"),
    [
        ("lr: float = 0.1", "model.lr"),
        ("learning_rate: float = 0.1, optimizer: str = 'SGD'", "model.learning_rate"),
        ("optimizer: OptimizerCallable = torch.optim.Adam", "model.optimizer.lr"),
        ("rate: float = 0.1", None),
    ],
)
def test_a_learning_rate_goes_to_the_module_s_own_argument_else_to_its_optimizer_s(
    folder, monkeypatch, complaint, argument, key
):
    monkeypatch.syspath_prepend(folder)
    name = f"own_{argument.partition(':')[0]}"
    (folder / f"{name}.py").write_text(
        "import lightning as L, torch\nfrom lightning.pytorch.cli import OptimizerCallable\n"
        f"class Own(L.LightningModule):\n    def __init__(self, {argument}):\n        super().__init__()\n"
        "    def test_step(self, batch):\n        pass\n"
    )
    (folder / "own.yaml").write_text(
        f"model: {{class_path: {name}.Own}}\ndata: {{class_path: ImageData, init_args: {{name: digits}}}}\n"
    )
    if key is None:
        words = ["compare", "--inits", "default", "-c", "own.yaml", "--learning-rates", "0.1", "--output", "out"]
        said = complaint(main, words)
        assert "Own takes no learning rate: add 'lr: float = 1e-3' to its __init__, and use it in conf" in said
        assert not (folder / "out").exists()
        return
    asked = comparison(folder / "out", experiment=["own.yaml"], configuration=values_of(parse(["-c", "own.yaml"])))
    assert values_of(parse(asked.arm_arguments(asked.arms["sincos"], rate=0.01)))[key] == 0.01


def test_a_folder_grows_by_starts_seeds_and_values(tmp_path):
    first = comparison(tmp_path, "default", grid={"k": ["1"]}, command="structured-init compare --seeds 0,1")
    assert first.write().seeds == [0, 1]
    more = comparison(tmp_path, "sincos", seeds=[1, 2], grid={"k": ["1", "5"]}, command="structured-init compare")
    grown = more.grown(more.known())
    assert grown.command == "structured-init compare --seeds 0,1\nstructured-init compare"
    assert more.grown(grown).command == grown.command
    assert list(grown.arms) == ["default", "sincos"]
    assert (grown.seeds, grown.grid) == ([0, 1, 2], {"k": ["1", "5"]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"configuration": {"trainer.max_epochs": 3}}, "trainer.max_epochs is 2 there, 3 here"),
        ({"threads": 2}, "--threads is 1 there, 2 here"),
        ({"arms": changed(1)}, "initialization 'default': init.x is 0 there, 1 here"),
        ({"grid": {"k": ["1"]}}, "--grid is nothing there, k here"),
        ({"learning_rates": [0.1]}, "--learning-rates is nothing there, given here"),
    ],
)
def test_another_comparison_is_refused_by_its_first_difference(tmp_path, changes, message):
    same = {"configuration": {"trainer.max_epochs": 2}, "arms": changed(0)}
    comparison(tmp_path, **same).write()
    other = comparison(tmp_path, **{**same, **changes})
    with pytest.raises(StructuredInitError, match=f"holds another comparison: {message}: choose another --output"):
        other.grown(other.known())


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(StructuredInitError, match=r"holds something else \('thesis.tex'\): choose another --output"):
        comparison(tmp_path).known()
    with pytest.raises(StructuredInitError, match="it is a file"):
        comparison(tmp_path / "thesis.tex").known()


def test_what_is_compared_is_read_as_it_was_written(tmp_path):
    given = {"metric": "test/loss", "mode": "min", "baseline": "wide", "success": 0.5, "question": Question(margin=0.5)}
    asked = comparison(tmp_path, "wide=impulse{kernel_size=5}", controls={"wide": {}}, threads=2, **given)
    written = asked.write()
    assert written.made_by == [made_by()]
    assert read_manifest(tmp_path).plain() == json.loads(json.dumps(written.plain()))
    known = asked.known()
    assert (known.arms, known.question, known.threads) == (asked.arms, asked.question, 2)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("arms", ["default"]), ("seeds", 3), ("grid", []), ("configuration", None), ("threads", "1")),
        *(("question", "better"), ("controls", []), ("metric", 3), ("baseline", 7), ("added", 3)),
    ],
)
def test_a_file_with_values_of_another_kind_is_refused_in_one_line(tmp_path, key, value):
    asked = comparison(tmp_path)
    (tmp_path / "plan.json").write_text(json.dumps({**asked.plain(), key: value}))
    for read in (asked.known, lambda: read_manifest(tmp_path)):
        with pytest.raises(StructuredInitError, match=f"plan.json': .*its '{key}' is not what a comparison writes"):
            read()


def test_a_value_of_250_characters_names_a_folder_that_can_be(tmp_path):
    one, other = (point_name((("k", letter * 250),)) for letter in "ab")
    assert len({one, other, one[:80]}) == 3
    assert max(len(one), len(other)) < 100


def test_what_two_commands_add_to_a_folder_at_once_is_all_there(tmp_path):
    """Each holds the folder while it reads and writes."""
    arms = [f"arm{number}=sincos" for number in range(8)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda arm: comparison(tmp_path, arm).write(), arms))
    assert len(comparison(tmp_path).known().arms) == 8


def planner_on(model, asked, data=None, strict=False):
    """One that has built a model already."""
    planner = Planner(asked, {})
    planner.built = {(): SimpleNamespace(model=model, datamodule=data)}
    planner.models = {((), "{}"): model}
    planner.read = lambda arm: ({"init.strict": strict}, None)
    return planner


@pytest.mark.parametrize("strict", [False, True])
def test_an_initialization_that_its_run_would_refuse_is_refused_before(tmp_path, strict):
    """With ``init.strict``, attention that is left alone ends a run; so it ends the planning."""

    class Attention(torch.nn.Module):
        """Of a class that nobody has described."""

        def __init__(self):
            super().__init__()
            self.q = torch.nn.Linear(8, 8)

    model = torch.nn.Module()
    model.known, model.attention = torch.nn.TransformerEncoderLayer(8, 2, 8), Attention()
    asked = comparison(tmp_path, "mine=mimetic")
    refused = pytest.raises(StructuredInitError, match=r"'mine': Mimetic, strict: 1 of 2 .*attention .Attention")
    with refused if strict else contextlib.nullcontext():
        planner_on(model, asked, strict=strict).plan(asked.arms["mine"], Mimetic(positions="keep"))


def test_a_control_that_cannot_be_is_left_out_with_the_reason():
    def plan(arm):
        if arm.label == "mimetic_positions":
            raise StructuredInitError(f"initialization '{arm.label}': SamePositions: Mimetic() writes no positions")
        return [None]

    initializers = {"default": Default(), "mimetic": QUERY_KEY}
    found, remarks = with_controls(parse_arms("default,mimetic"), initializers, {}, plan, ENDINGS["auto"])
    assert list(found) == ["default", "mimetic", "mimetic_scrambled"]
    assert remarks == [
        "added mimetic_scrambled",
        "left out mimetic_positions: SamePositions: Mimetic() writes no positions",
        "left out mimetic_sharpened: there are no samples here to measure attention on: name it yourself",
    ]


def test_controls_as_sharp_are_added_where_they_can_be_planned(tmp_path):
    names = {"mimetic": QUERY_KEY, "covariance": FilterCovariance()}
    model = torch.nn.Module()
    model.vit = VisionTransformer(img_size=8, patch_size=2, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    model.mixer = ConvMixer(8, 1, kernel_size=3, patch_size=2, num_classes=3)
    model.forward, batch = model.vit.forward, TensorDataset(torch.randn(2, 3, 8, 8), torch.zeros(2))
    data = SimpleNamespace(prepare_data=bool, setup=bool, train_dataloader=lambda: DataLoader(batch, 2))
    makers = {"_sharpened": Sharpened, "_scrambled": Scrambled, "_positions": SamePositions}
    planner = planner_on(model, comparison(tmp_path, ",".join(names)), data)

    def plan(arm):
        (ending,) = (each for each in makers if arm.label.endswith(each))
        return planner.plan(arm, makers[ending](names[arm.label.removesuffix(ending)]))

    found, remarks = with_controls(parse_arms(",".join(names)), names, {}, plan, ENDINGS["auto"])
    assert remarks[0] == "added mimetic_scrambled, mimetic_sharpened, covariance_scrambled"
    said = dict(remark.removeprefix("left out ").split(": ", 1) for remark in remarks[1:])
    assert said["covariance_sharpened"].endswith("writes no queries and keys of this model")
    assert found["mimetic_sharpened"].configuration == "init/mimetic_sharpened"
    made = initializer_of(parse(["-c", "vit_digits", "-c", found["covariance_scrambled"].configuration]))
    assert (type(made), type(made.initializer)) == (Scrambled, FilterCovariance)


def test_a_label_that_a_control_would_have_is_refused_where_it_means_something_else():
    arms = parse_arms("mimetic,mimetic_positions=sincos")
    initializers = {"mimetic": QUERY_KEY, "mimetic_positions": Positions()}
    with pytest.raises(StructuredInitError, match="needs the label 'mimetic_positions': rename that arm"):
        with_controls(arms, initializers, {}, lambda arm: [None], ENDINGS["auto"])


def test_a_folder_says_which_versions_have_made_it(tmp_path, monkeypatch):
    begun = comparison(tmp_path).write()
    assert comparison(tmp_path).grown(begun).made_by == [made_by()]
    monkeypatch.setattr("comparison.plan.comparison.made_by", lambda: "0.1.0, commit other")
    assert comparison(tmp_path).grown(begun).made_by == [made_by(), "0.1.0, commit other"]
