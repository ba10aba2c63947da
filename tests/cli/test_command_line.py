"""Mistakes on the command line: one sentence, exit status 1, no traceback."""

import importlib.util
from pathlib import Path

import pytest
import torch
from cli.runs import door, parsed, small

from bertsecrets.cli.arguments import with_resume
from bertsecrets.cli.composition import check
from bertsecrets.errors import UserError
from bertsecrets.settings import CONF
from bertsecrets.sweeps.sweep import open_sweep, resume_arguments


def checked(arguments: list[str], name: str = "train") -> None:
    check(parsed(arguments, name))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["task=mrcp"], "Unknown task 'mrcp'; did you mean 'mrpc'"),
        (["task=ud_ewt"], "Task 'ud_ewt' has no labels to fine-tune on; use analyze.py"),
        (["annotation=spacy"], "Config key 'annotation.pipeline' has no value"),
        (["model=minlm"], "Unknown model 'minlm'; did you mean 'minilm'"),
        (["callbacks=drfit"], "Unknown callbacks 'drfit'; did you mean 'drift'"),
        (
            ["callbacks=qqqq"],
            "Unknown callbacks 'qqqq'; valid names: .*, or the name of a file in --config-dir=<folder>",
        ),
        (["+measure@callbacks.drift.measures.more=drft"], "Unknown measure 'drft'; did you mean 'drift'"),
        (["trainer.max_epoch=3"], "Unknown config key 'trainer.max_epoch'; did you mean 'trainer.max_epochs'"),
        (["sed=3"], "Unknown config key 'sed'; did you mean 'seed'"),
        (
            ["callbacks=dark_secrets", "framenet.roott=x"],
            "Unknown config key 'framenet.roott'; did you mean 'framenet.root'",
        ),
        (["-m", "task=mrpc,rtee", "seed=1,2"], r"Unknown task 'rtee'; did you mean 'rte'.*task=rtee seed=1"),
        (["-m", "init=pretrained,random"], r"Unknown init 'random'; did you mean 'random_normal'.*init=random"),
        (["-m", "task=mrpc", "seed=-1,2"], r"seed is -1; expected a whole number.*task=mrpc seed=-1"),
        (["task=mrpc,rte"], "'task=mrpc,rte' lists several values; add -m"),
        (
            ["measure=drift,entropy"],
            r"several values; write measure=\[drift,entropy\] to use all in one run, or add -m",
        ),
        (["measure=choice(drift,entropy)"], r"several values; write measure=\[<value>,<value>\] to use all in one run"),
        (["resume=true"], "resume=true is for sweeps"),
        (["logger.wandb.mode=onlin"], "Unknown logger.wandb.mode 'onlin'; did you mean 'online'"),
        (["objective=val/acuracy", "task=rte"], "objective is 'val/acuracy'; did you mean 'val/accuracy'"),
        (["-m", "seed=range(3,3)"], r"'seed=range\(3,3\)' has no value"),
        (["-m", "task=glob(demo_*,exclude=demo_coreference)", "seed=1,-2"], "seed is -2"),
        (["model=folder"], "Config key 'model.path' has no value"),
        (["seed"], "write key=value"),
        (["~measure"], r"'~measure' does not name a measure; write measure=\[\] for none, or '~measure.<name>'"),
    ],
)
def test_the_nearest_valid_name_is_suggested(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        checked(arguments)
    assert "\n" not in str(caught.value)


def test_a_missing_annotator_is_found_before_anything_is_loaded() -> None:
    with pytest.raises(UserError, match=r"'features' needs annotated words.*annotation=spacy annotation.pipeline="):
        checked(["task=mrpc", "measure=[drift,features]"])
    with pytest.raises(UserError, match=r"spaCy pipeline 'en_core_web_nothing' is neither installed nor a folder"):
        checked(["task=mrpc", "measure=[features]", "annotation=spacy", "annotation.pipeline=en_core_web_nothing"])
    with pytest.raises(UserError, match=r"'gradient_importance' needs the gradients of a loss.*no labels"):
        checked(["checkpoint=x", "task=ud_ewt", "measure=[gradient_importance]"], "analyze")
    with pytest.raises(UserError, match=r"'minilm' has no masked-language-model head: the weights in '.*model' lack"):
        checked(["checkpoint=initial", "model=minilm", "task=ud_ewt", "measure=[masked_lm_gradient]"], "analyze")
    # The demo tasks carry gold words, and frame relations may come from sentences of FrameNet.
    checked(["measure=[features]"])
    checked(["task=mrpc", "measure=[frame_relations]"])


def test_valid_command_lines_pass() -> None:
    checked([])
    checked(["-m", "task=mrpc,rte", "seed=range(1,3)", "trainer=ddp_cpu", "trainer.devices=2"])
    checked(["experiment=drift_kovaleva", "~callbacks.capture"])
    checked(["checkpoint=x", "analysis=drift"], "analyze")


OWN_TASK = [
    "task.name=mine", "task.texts=1", "task.metrics=[accuracy]", "+task.labels=[a,b]", "task.training.learning_rate=1e-4",
    "task.training.batch_size=8", "task.training.max_epochs=1", "task.training.max_length=32", "data=tsv", "data.root=x",
]  # fmt: skip


@pytest.mark.slow
def test_every_group_of_the_configuration_composes() -> None:
    annotated = ("dark_secrets", "dark_secrets_minilm", "what_does_bert_look_at", "specialized_heads", "questions")
    for group in ("task", "model", "trainer", "logger", "callbacks", "data", "experiment", "launcher"):
        for path in sorted((CONF / group).glob("*.yaml")):
            # Neither weights nor a spaCy pipeline need be there for that.
            extra = {"folder": ["model.path=x"], "spacy": ["annotation.pipeline=null"], "file": OWN_TASK}.get(
                path.stem, []
            )
            words = ["annotation.pipeline=null", "task=demo_paraphrase", "data=auto"]
            extra = words if path.stem in annotated else extra
            # Sentences without labels, and experiments that analyse: nothing is trained there.
            unlabelled = ("ud_ewt", "treebank", "coreference", "demo_coreference", "own")
            if path.stem == "ray" and importlib.util.find_spec("ray") is None:
                # Its plugin cannot share an environment with joblib's.
                with pytest.raises(UserError, match=r"'ray' needs .* run pip install 'bertsecrets\[ray\]'"):
                    checked([f"{group}={path.stem}"])
            elif path.stem in unlabelled or "override /analysis" in path.read_text("utf-8"):
                checked(["checkpoint=x", f"{group}={path.stem}", *extra], "analyze")
            else:
                checked([f"{group}={path.stem}", *extra])
    for group in ("analysis", "annotation"):
        for path in sorted((CONF / group).glob("*.yaml")):
            extra = {"spacy": ["annotation.pipeline=null"], "disable_groups": ["ablation.heads=[[0,0]]"]}.get(
                path.stem, []
            )
            checked(["checkpoint=x", f"{group}={path.stem}", *extra], "analyze")


def test_resume_takes_no_other_settings(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no config.yaml"):
        with_resume(parsed([f"resume={tmp_path}"]))
    (tmp_path / "config.yaml").write_text("{}")
    # A plus before the key is a habit of Hydra's users.
    for signs in ("", "+", "++"):
        overrides = with_resume(parsed([f"{signs}resume={tmp_path}"])).overrides
        assert overrides == [f"resume='{tmp_path}'", f"hydra.run.dir='{tmp_path}'", "hydra.output_subdir=null"]
    with pytest.raises(UserError, match="folder of a single run; remove -m"):
        with_resume(parsed(["-m", f"resume={tmp_path}"]))
    with pytest.raises(UserError, match="'seed=3' cannot be combined with resume=<folder>"):
        with_resume(parsed([f"resume={tmp_path}", "seed=3"]))


def test_one_sentence_and_no_traceback() -> None:
    result = door("train", "task=mrcp")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert "Traceback" in door("train", "task=mrcp", "debug=true").stderr


def test_a_single_run_is_composed_once_from_all_folders_of_configurations(tmp_path: Path) -> None:
    for folder, group in (("flag", "task"), ("path", "model")):
        (tmp_path / folder / group).mkdir(parents=True)
        text = (CONF / group / {"task": "mrpc", "model": "minilm"}[group]).with_suffix(".yaml").read_text("utf-8")
        (tmp_path / folder / group / "brought.yaml").write_text(text, "utf-8")
    script = (
        "from hydra._internal.config_loader_impl import ConfigLoaderImpl as loader\n"
        "import bertsecrets.cli.train\n"
        "load = loader.load_configuration\n"
        "def counted(self, *arguments, **settings):\n"
        "    print('composed')\n"
        "    return load(self, *arguments, **settings)\n"
        "loader.load_configuration = counted\n"
        "bertsecrets.cli.train.train = lambda config: print('trained', config.seed, config.model.name)\n"
    )
    folders = ["--config-dir", str(tmp_path / "flag"), f"hydra.searchpath=[{tmp_path / 'path'}]"]
    words = [*folders, "task=brought", "model=brought", "seed=7", f"hydra.run.dir={tmp_path / 'run'}"]
    result = door("train", *words, before=script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["composed", "trained", "7", "minilm"]
    assert (tmp_path / "run" / "train.log").is_file()


def test_a_loss_that_is_not_finite_is_reported_with_its_step(tiny_bert: Path, tmp_path: Path) -> None:
    arguments = small(tiny_bert, tmp_path / "run", checkpoint__every_n_steps=2)
    script = (
        "import bertsecrets.models.classifier as c\n"
        "scored = c.SequenceClassifier._scored\n"
        "def poisoned(self, batch):\n"
        "    return scored(self, batch) * (float('nan') if self.training and self.global_step >= 5 else 1)\n"
        "c.SequenceClassifier._scored = poisoned\n"
    )
    result = door("train", *arguments, before=script)
    assert result.returncode == 1, result.stderr
    assert "not finite at step 5" in result.stderr
    assert torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["global_step"] == 4


def test_a_sweep_repeats_its_last_command(tmp_path: Path) -> None:
    def opened(*arguments: str, name: str = "train") -> list[str]:
        command = ["-m", *arguments, f"hydra.sweep.dir={tmp_path / 'sweep'}"]
        invocation = parsed(command, name)
        open_sweep(invocation, check(invocation), command)
        return [each for each in resume_arguments(tmp_path / "sweep") or [] if each.startswith("seed")]

    assert opened("seed=1,2") == ["seed=1,2"]
    assert opened("seed=range(1,4)", "resume=true") == ["seed=range(1,4)"]
    with pytest.raises(UserError, match="already contains a sweep; add resume=true"):
        opened("seed=1,2")
    with pytest.raises(UserError, match="contains a sweep of 'train', not of 'analyze'"):
        opened("seed=1,2", "resume=true", "checkpoint=x", name="analyze")


def test_a_sweep_folder_cannot_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        command = ["-m", "seed=1,2", f"hydra.sweep.dir={place}"]
        invocation = parsed(command)
        with pytest.raises(UserError, match="that path is a file"):
            open_sweep(invocation, check(invocation), command)
