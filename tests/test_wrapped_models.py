"""Models wrapped in DistributedDataParallel or sharded over processes, given to the API."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from data.toy import wordpiece
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel
from trainings import tiny_classifier

import bertsecrets as bs
from bertsecrets.errors import UserError
from bertsecrets.models.sharding import shard

TEXTS = ["the cat sat", "a dog ran to the cat", "the dog", "a cat sat", "the cat ran"]
LABELS = [0, 1, 0, 1, 1]


def results(model: Any) -> tuple[pd.DataFrame, Any]:
    tokenizer = wordpiece()
    disabled = bs.disable(model, tokenizer, TEXTS, LABELS, mode="zero", resamples=100, batch_size=2)
    return disabled.to_pandas(), bs.measure(model, tokenizer, TEXTS, "entropy", batch_size=2)


def analyse(rank: int, folder: Path) -> None:
    """What each of two processes does."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    parallel, sharded = DistributedDataParallel(tiny_classifier()), tiny_classifier()
    shard(sharded, init_device_mesh("cpu", (2,)))
    for name, model in (("parallel", parallel), ("sharded", sharded)):
        rows, grid = results(model)
        rows.to_parquet(folder / f"{name}{rank}.parquet")
        torch.save((grid.value_LHC, grid.stderr_LHC, grid.count_LHC), folder / f"{name}{rank}.pt")
    with pytest.raises(UserError, match=r"sharded by FullyShardedDataParallel.*; load its saved weights"):
        results(FullyShardedDataParallel(tiny_classifier(), device_id=torch.device("cpu")))
    distributed.destroy_process_group()


@pytest.mark.slow
def test_processes_that_share_a_model_count_each_example_once(tmp_path: Path) -> None:
    rows, grid = results(tiny_classifier())
    columns = ["baseline", "delta", "loss_change", "low_simultaneous", "high_simultaneous", "p_needed"]
    assert (rows.loss_change != 0).all()
    torch.multiprocessing.spawn(analyse, (tmp_path,), nprocs=2)
    for name in ("parallel0", "parallel1", "sharded0", "sharded1"):
        of_two = pd.read_parquet(tmp_path / f"{name}.parquet")
        assert set(of_two["count"]) == {len(TEXTS)}
        np.testing.assert_allclose(of_two[columns], rows[columns], atol=1e-5)
        tensors = (grid.value_LHC, grid.stderr_LHC, grid.count_LHC)
        for tensor, expected in zip(torch.load(tmp_path / f"{name}.pt"), tensors, strict=True):
            torch.testing.assert_close(tensor, expected, equal_nan=True)
