"""Measures by name, outside of Hydra: the arguments that Hydra composes, in a program that uses Hydra itself and in
threads.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import bertsecrets as bs
from bertsecrets.measures.shipped import shipped_measure, shipped_names
from bertsecrets.settings import CONF
from bertsecrets.sweeps.hydra_arguments import BASE


def test_a_measures_arguments_are_those_that_hydra_composes() -> None:
    with initialize_config_dir(str(CONF.resolve()), **BASE):
        composed = OmegaConf.to_container(compose("train", [f"measure=[{','.join(shipped_names())}]"]), resolve=True)
    assert len(composed["measure"]) > 15
    for name, section in composed["measure"].items():
        maker = shipped_measure(name)
        arguments = {key: value for key, value in section.items() if key not in ("every_n_validations", "tracked")}
        assert {"_target_": f"{maker.func.__module__}.{maker.func.__qualname__}", **maker.keywords} == arguments, name


@pytest.mark.parametrize("uses_hydra", [False, True])
def test_threads_measure_at_once_also_in_a_program_that_uses_hydra(tiny_bert: Path, uses_hydra: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    models = [AutoModelForSequenceClassification.from_pretrained(tiny_bert).eval() for _ in range(4)]
    for number, model in enumerate(models):
        torch.manual_seed(number)
        model.apply(lambda module: module.reset_parameters() if isinstance(module, torch.nn.Linear) else None)

    def measure(model: torch.nn.Module) -> torch.Tensor:
        grids = bs.measure(model, tokenizer, ["The cat sat.", "It rained all day.", "No."], ["entropy", "offsets"])
        return torch.cat([grid.value_LHC for grid in grids.values()], -1)

    alone = [measure(model) for model in models]
    assert not torch.equal(alone[0], alone[1])
    if uses_hydra:
        with initialize_config_dir(str(CONF.resolve()), **BASE):
            assert torch.equal(measure(models[0]), alone[0])
            assert compose("train").seed == 42
    with ThreadPoolExecutor(4) as threads:
        # A model is in one thread at a time.
        together = threads.map(lambda model: [measure(model) for _ in range(4)], models)
    for values, expected_LHC in zip(together, alone, strict=True):
        assert all(torch.equal(value_LHC, expected_LHC) for value_LHC in values)
