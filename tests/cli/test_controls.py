"""Controls chosen by name: what they set, and what runs with them."""

import pytest
from cli.runs import composed

import bertsecrets.cli.run_settings  # noqa: F401  registers the resolver of the configuration
from bertsecrets.cli.settings import read_train
from bertsecrets.results.run import controls


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("none", ["1.0", "None", "None", "False"]),
        ("permuted_labels", ["1.0", "None", "None", "True"]),
        ("second_sentence", ["1.0", "None", "second", "False"]),
        ("inverted_rates", ["1.25", "None", "None", "False"]),
        ("no_attention_dropout", ["1.0", "0.0", "None", "False"]),
    ],
)
def test_a_control_sets_one_thing_and_takes_no_further_analyses(name: str, values: list[str]) -> None:
    config = composed(["experiment=questions_quick", "task=demo_nli", f"control={name}"])
    read_train(config)
    assert list(controls(config).values()) == values
    assert ("disable" in config["callbacks"]) == (name == "none")
    assert "gradient_flow" in config["callbacks"]
    assert (name in config["name"]) == (name != "none")
