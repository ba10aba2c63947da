"""All heads that can be spared disabled together, and the example that each head decides most."""

from pathlib import Path

import numpy as np
import pytest
import torch
from data.tasks import task
from data.toy import wordpiece
from reporting.finished_runs import make_run
from torch import Tensor
from trainings import tiny_classifier

from bertsecrets.ablation.closer_look import look_closer
from bertsecrets.ablation.outcomes import Outcomes
from bertsecrets.ablation.plan import Plan, every_head
from bertsecrets.ablation.rows import ABLATION, Together, found
from bertsecrets.ablation.settings import AblationSettings
from bertsecrets.analysis import Context
from bertsecrets.attention.override import HeadEdit, override
from bertsecrets.data.module import TaskData
from bertsecrets.data.sources import SourceConfig
from bertsecrets.errors import UserError
from bertsecrets.models.encoder import evaluating
from bertsecrets.results.captures import read_telling, write_telling
from bertsecrets.results.run import Run

DEMO = task("demo_paraphrase")
LAYERS, HEADS = 3, 4
SPARED = [(0, 1), (2, 3)]


def test_one_more_pass_and_the_most_telling_example(tmp_path: Path) -> None:
    data = TaskData(DEMO, SourceConfig(source="demo", limit_train=8, limit_eval=12), wordpiece(), 4, max_length=32)
    dataset = data.evaluation_dataset("val")
    model = tiny_classifier().eval()

    @torch.no_grad()
    def logits(edits: list[tuple[int, int]]) -> Tensor:
        """One example after the other, without padding."""
        with override(model, [HeadEdit(layer, head, "uniform") for layer, head in edits]):
            return torch.cat([model(**dataset[[place]].inputs()).logits for place in range(len(dataset))])

    variants = every_head(LAYERS, HEADS)
    clean_NC, changed = logits([]), {variant.heads[0]: logits([*variant.heads]) for variant in variants}
    label_N = torch.tensor([example.label for example in dataset.examples])
    index_N = torch.tensor([example.index for example in dataset.examples])
    outcomes = Outcomes(
        Plan("uniform", LAYERS, HEADS, tuple(variants)),
        index_N,
        label_N.float(),
        clean_NC,
        torch.stack([*changed.values()], 1),
    )
    spared_LH = np.zeros((LAYERS, HEADS), bool)
    spared_LH[tuple(zip(*SPARED, strict=True))] = True
    make_run(tmp_path / "run", delta_LH=np.zeros((LAYERS, HEADS)), dispensable_LH=spared_LH)
    run = Run.open(tmp_path / "run")
    outcomes.write(run.folder / "ablation" / "training-00000009-uniform.safetensors", DEMO)
    rows = run.ablation_table().rows()
    settings = AblationSettings.read("ablation", {"resamples": 100, "permutations": 100})
    with evaluating(model), torch.no_grad():
        closer, telling = look_closer(Context.of_data(model, data, output=run), outcomes, settings, rows)
    run.write_rows(ABLATION, rows[0]["stage"], rows[0]["step"], closer)
    write_telling(run.folder / "ablation", telling)

    together = next(row for row in found(run, Together) if row.metric == "accuracy")
    assert together.heads == " ".join(f"{layer}-{head}" for layer, head in SPARED)
    right, before = ((found.argmax(-1) == label_N).double().mean().item() for found in (logits(SPARED), clean_NC))
    assert together.score == pytest.approx(right)
    assert together.change.value == pytest.approx(right - before)
    assert together.change.low <= together.change.value <= together.change.high

    telling = read_telling(run.folder / "ablation")
    assert set(telling) == set(changed)
    model.config._attn_implementation = "eager"
    for (layer, head), example in telling.items():
        after_NC = changed[layer, head].softmax(-1)
        moves = [
            abs(float(after_NC[place, answer] - clean_NC[place].softmax(-1)[answer]))
            for place, answer in enumerate(clean_NC.argmax(-1).tolist())
        ]
        place = int(np.argmax(moves))
        assert list(example.tokens) == data.tokens(dataset[[place]].input_ids_BS[0])
        assert example.label == DEMO.labels[int(label_N[place])]
        assert [name for name, _, _ in example.answers] == list(DEMO.labels)
        expected = torch.stack([clean_NC[place].softmax(-1), after_NC[place]], 1)
        np.testing.assert_allclose([numbers for _, *numbers in example.answers], expected, atol=1e-4)
        with torch.no_grad():
            maps = model(**dataset[[place]].inputs(), output_attentions=True).attentions
        np.testing.assert_allclose(example.attention_QK, maps[layer][0, head], atol=2e-3)

    (run.folder / "ablation" / "telling.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_telling(run.folder / "ablation")
