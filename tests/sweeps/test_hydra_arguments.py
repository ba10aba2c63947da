"""Hydra's command line, and the parts of Hydra that no release promises to keep."""

import importlib
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

import bertsecrets
from bertsecrets.errors import UserError
from bertsecrets.results.files import copied, quoted
from bertsecrets.sweeps.hydra_arguments import parse_arguments, parse_overrides, unquoted

INTERNAL = "hydra._internal"
USER = Path("sweeps/hydra_arguments.py")


def test_internals_of_hydra_are_used_in_one_file_and_are_where_it_expects_them() -> None:
    root = Path(bertsecrets.__file__).parent
    users = {path.relative_to(root) for path in root.rglob("*.py") if f"from {INTERNAL}" in path.read_text("utf-8")}
    assert users == {USER}
    try:
        parser = importlib.import_module(f"{INTERNAL}.utils").get_args_parser()
        parsed = vars(parser.parse_intermixed_args(["seed=1", "-m", "--config-name", "train", "task=mrpc"]))
    except (ImportError, AttributeError) as error:
        pytest.fail(f"Hydra has moved or changed its argument parser ({error}); adapt bertsecrets/{USER}.")
    expected = {"overrides": ["seed=1", "task=mrpc"], "multirun": True, "config_name": "train", "config_path": None}
    others = ("config_dir", "help", "hydra_help", "cfg", "info", "shell_completion", "experimental_rerun")
    expected |= {name: parsed.get(name) for name in others if not parsed.get(name, True)}
    missing = {*expected, *others} - parsed.keys()
    assert not missing, f"Hydra's argument parser no longer has {sorted(missing)}; adapt bertsecrets/{USER}."
    assert {name: parsed[name] for name in expected} == expected


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1))
def test_a_quoted_text_is_read_back_unchanged(text: str) -> None:
    (override,) = parse_overrides([f"key={quoted(text)}"])
    assert override.value() == text
    assert unquoted(quoted(text)) == text


HOSTILE = st.text(
    st.one_of(
        st.sampled_from(" ()=,'\"\\${}[]ü评eE0123.+-_/:@%~?|;*!#&<>ntinfull"),
        st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]),
    ),
    min_size=1,
)


@given(HOSTILE)
def test_a_value_in_a_copied_command_reaches_the_settings_unchanged(text: str) -> None:
    for value in (text, [text, "a"]):
        (word,) = shlex.split(f"checkpoint={copied(value)}")
        (override,) = parse_overrides([word])
        assert not override.is_sweep_override()
        assert OmegaConf.to_container(OmegaConf.create({"key": override.value()}), resolve=True) == {"key": value}


def test_a_command_line_is_parsed(tmp_path: Path) -> None:
    invocation = parse_arguments(["seed=1,2", "-m", "task=mrpc", "--config-dir", str(tmp_path)], tmp_path, "train")
    assert (invocation.overrides, invocation.multirun) == (["seed=1,2", "task=mrpc"], True)
    assert (invocation.config_dir, invocation.config_name, invocation.search) == (tmp_path, "train", tmp_path)
    assert not invocation.shows
    for showing in (["--cfg", "job"], ["--info"]):
        shown = parse_arguments(showing, tmp_path, "train")
        assert shown.shows
    asking = parse_arguments(["seed=1", "--help"], tmp_path, "train")
    assert (asking.help, invocation.help) == (True, False)
    assert parse_arguments(["--hydra-help"], tmp_path, "train") is None


def test_a_relative_folder_of_configurations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--config-path is 'mine'; expected an absolute path, such as '/.*/mine'"):
        parse_arguments(["--config-path", "mine"], tmp_path, "train")
    invocation = parse_arguments(["--config-path", str(tmp_path / "mine")], tmp_path, "train")
    assert invocation.config_dir == tmp_path / "mine"


def test_a_setting_that_cannot_be_parsed_is_reported() -> None:
    with pytest.raises(UserError, match="write key=value, and quote special characters"):
        parse_overrides(["seed"])
