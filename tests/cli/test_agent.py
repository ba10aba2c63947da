"""The commands that a W&B agent makes of the sweeps in ``conf/wandb``, run offline with the agent's environment."""

import json
from pathlib import Path

import pytest
import yaml
from cli.runs import ROOT, ran, small, small_analysis
from wandb.sdk.launch.sweeps.utils import create_sweep_command_args
from wandb_log import leaves, tracked


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
    if program == "train":
        given = small(tiny_bert, tmp_path, logger="wandb", trainer__max_epochs=1)
    else:
        given = small_analysis(tiny_bert, tmp_path, logger="wandb", checkpoint=trained)
    agent = {"WANDB_SWEEP_ID": "sweep1", "WANDB_RUN_ID": "agent1"}
    result = ran(program, *arguments, *given, "logger.wandb.mode=offline", variables=agent)
    assert "A W&B agent started this run, but logger.wandb.mode is offline" in result.stdout
    found = tracked(tmp_path)
    assert (found.path.stem, found.run.run_id, found.run.sweep_id) == ("run-agent1", "agent1", "sweep1")
    objective = json.loads((tmp_path / "scores.json").read_text())["sets"]["val"]["model"]["accuracy"]
    if program == "analyze":
        assert found.run.display_name.startswith(f"without {expected['disabled/what']} · ")
        objective += float(str(found.summary["disabled/effect"])) / 100
        assert found.summary.items() >= expected.items()
    assert found.summary["objective"] == pytest.approx(objective)
    assert leaves(found.run.config.update).items() >= expected.items()
