"""A run's copy of its configuration."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from bertsecrets.errors import UserError
from bertsecrets.results.run import plain, read_config, write_config


def test_the_copy_is_resolved_and_read_back(tmp_path: Path) -> None:
    write_config(OmegaConf.create({"seed": 3, "name": "run-${seed}"}), tmp_path)
    assert plain(read_config(tmp_path)) == {"seed": 3, "name": "run-3"}


def test_an_analysis_records_how_far_the_analysed_run_lies(tmp_path: Path) -> None:
    config = OmegaConf.create({"trained": {"name": "run", "folder": str(tmp_path / "run"), "from_here": "elsewhere"}})
    (tmp_path / "sweep" / "analysis").mkdir(parents=True)
    write_config(config, tmp_path / "sweep" / "analysis")
    assert read_config(tmp_path / "sweep" / "analysis").trained.from_here == str(Path("..", "..", "run"))
    assert config.trained.from_here == "elsewhere"


@pytest.mark.parametrize("content", ["{", "", "- 1", "a: ${"])
def test_an_unreadable_configuration_is_reported(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(content)
    with pytest.raises(UserError, match=r"config.yaml' (cannot be read|has no configuration)"):
        read_config(tmp_path)
