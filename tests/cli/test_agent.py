"""The commands that a W&B agent makes of the sweeps in ``conf/wandb``, run offline with the agent's environment."""

import json
from pathlib import Path

import pytest
import yaml
from cli.runs import ROOT, door, small
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args
from wandb_log import leaves, read_log


def command_of(name: str, **values: object) -> tuple[str, list[str]]:
    """The program and the arguments with which W&B's agent starts a run of a sweep."""
    sweep = yaml.safe_load((ROOT / "conf" / "wandb" / f"{name}.yaml").read_text("utf-8"))
    assert sweep["metric"] == {"name": "objective", "goal": "maximize"}
    chosen = {key.replace("__", "."): {"value": value} for key, value in values.items()}
    assert chosen.keys() <= sweep["parameters"].keys()
    arguments = create_sweep_command_args({"args": chosen})["args_no_hyphens"]
    start, fixed, last = sweep["command"][:3], sweep["command"][3:-1], sweep["command"][-1]
    assert (start, last) == (["${env}", "${interpreter}", "${program}"], "${args_no_hyphens}")
    return Path(sweep["program"]).stem, [*fixed, *arguments]


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("agent_search", {"optimizer__learning_rate": 0.00031}, {"optimizer/learning_rate": 0.00031}),
        ("agent_heads", {"ablation__head": "[0.1,1.3]"}, {"disabled/what": "layer 0 · head 1; layer 1 · head 3"}),
    ],
)
def test_an_agents_run_has_its_id_and_the_objective(
    name: str, values: dict[str, object], expected: dict[str, object], tiny_bert: Path, trained: Path, tmp_path: Path
) -> None:
    program, arguments = command_of(name, **values)
    keys = (
        ("model", "task", "data", "trainer")
        if program == "train"
        else ("trainer.accelerator", "report", "progress", "ablation")
    )
    given = [
        word
        for word in small(tiny_bert, tmp_path, logger="wandb", trainer__max_epochs=1)
        if word.startswith((*keys, "logger", "hydra"))
    ]
    given += (
        ["logger.wandb.mode=offline"] if program == "train" else [f"checkpoint={trained}", "logger.wandb.mode=offline"]
    )
    agent = {"WANDB_SWEEP_ID": "sweep1", "WANDB_RUN_ID": "agent1"}
    result = door(program, *arguments, *given, variables=agent)
    assert result.returncode == 0, result.stderr
    assert "A W&B agent started this run, but logger.wandb.mode is offline" in result.stdout
    (log,) = tmp_path.glob("wandb/offline-run-*/run-agent1.wandb")
    records = list(read_log(log))
    (run,) = [record.run for record in records if record.HasField("run")][:1]
    assert (run.run_id, run.sweep_id) == ("agent1", "sweep1")
    summary: dict[str, object] = {}
    for record in records:
        if record.HasField("summary"):
            summary |= leaves(record.summary.update)
    scores = json.loads((tmp_path / "scores.json").read_text())["sets"]["val"]["model"]
    config = leaves(run.config.update)
    if program == "train":
        assert summary["objective"] == scores["accuracy"]
        assert config.items() >= expected.items()
    else:
        assert run.display_name.startswith(f"without {expected['disabled/what']} · ")
        assert summary["objective"] == pytest.approx(scores["accuracy"] + float(str(summary["disabled/effect"])) / 100)
        assert summary.items() >= expected.items()
        assert config.items() >= expected.items()
