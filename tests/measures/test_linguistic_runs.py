"""Features and linked words from the command line to the report."""

from pathlib import Path

import numpy as np
import pytest
from cli.runs import door, small

from bertsecrets.results.table import HeadTable


@pytest.mark.slow
def test_a_pipeline_annotates_a_task_and_the_original_definitions_run_on_it(
    tiny_bert: Path, tmp_path: Path, glue: Path
) -> None:
    pytest.importorskip("spacy", reason="spaCy is not installed; pip install 'bertsecrets[annotate]'")
    from data.pipelines import train_pipeline

    given = small(
        tiny_bert,
        tmp_path / "trained",
        task="mrpc",
        data="tsv",
        data__root=glue,
        data__limit_eval=100,
        trainer__max_epochs=1,
        callbacks="features",
    )
    pipeline = train_pipeline(tmp_path / "pipeline")
    annotated = [
        *given,
        "annotation=spacy",
        f"annotation.pipeline={pipeline}",
        f"annotation.cache_dir={tmp_path / 'kept'}",
    ]
    trained = door("train", *annotated)
    assert trained.returncode == 0, trained.stderr[-2000:]
    assert HeadTable.read(tmp_path / "trained" / "heads.parquet").steps("features", "nouns", "training")
    analysed = door(
        "analyze",
        *(each for each in annotated if not each.startswith(("callbacks", "hydra", "trainer.max", "task.training"))),
        f"checkpoint={tmp_path / 'trained'}",
        "measure=[features,features_kovaleva,token_to_token_kovaleva]",
        f"hydra.run.dir={tmp_path / 'analysed'}",
    )
    assert analysed.returncode == 0, analysed.stderr[-2000:]
    table = HeadTable.read(tmp_path / "analysed" / "heads.parquet")
    [step] = table.steps("features", "objects", "checkpoint")
    assert np.isfinite(table.grid("token_to_token_kovaleva", "subject_to_verb", "checkpoint", step)[0]).all()
    # Absent ones count as 0, but negation's are disregarded.
    assert table.grid("features_kovaleva", "objects", "checkpoint", step)[2].min() == 100
    assert table.grid("features_kovaleva", "negation", "checkpoint", step)[2].max() < 100
