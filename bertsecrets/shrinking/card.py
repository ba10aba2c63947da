"""The model card of a smaller model: description, loading and tests."""

from huggingface_hub import EvalResult, ModelCardData

from bertsecrets.data.task import Task
from bertsecrets.present.report.content import Table
from bertsecrets.present.shrink import answer_in_words, frontier_table, groups_table, how_in_words, tests_table
from bertsecrets.pruning.rows import Shrunk
from bertsecrets.results.formatting import markdown_table, markdown_text

CARD = "README.md"


def shrink_card(shrunk: Shrunk, name: str, task: Task) -> str:
    """The card in Markdown, with the hub's metadata as YAML in front.

    Args:
        name: Name of the run that made it.
    """
    results = [
        EvalResult(
            task_type=task.head.pipeline,
            dataset_type=task.name,
            dataset_name=task.name,
            metric_type=test.metric,
            metric_value=test.smaller,
        )
        for test in shrunk.written.tests
    ]
    metadata = ModelCardData(
        eval_results=results,
        library_name="bertsecrets",
        model_name=name,
        pipeline_tag=task.head.pipeline,
        tags=["bertsecrets", "pruned"],
    )
    texts = ", ".join(['"The cat sat."', '"The cat lay."'][: task.texts])
    usage = [_in_python(texts)]
    if shrunk.written.attempt.int8:
        # This program was timed and tested.
        usage = [_in_onnx_runtime("model.int8.onnx", texts), "With 32-bit weights (slower):", *usage]
    elif shrunk.search.onnx:
        usage += ["Or in ONNX Runtime:", _in_onnx_runtime("model.onnx", texts)]
    parts = [
        f"---\n{metadata.to_yaml()}\n---",
        f"# {markdown_text(name)}: a smaller model of the task `{markdown_text(task.name)}`",
        markdown_text(answer_in_words(shrunk)),
        "## Use",
        *usage,
        "## Speed",
        _table(frontier_table(shrunk)),
        "## Tests",
        _table(tests_table(shrunk)),
        *(["## Classes and lengths", _table(groups_table(shrunk))] if shrunk.written.groups else []),
        "## How it was made",
        markdown_text(how_in_words(shrunk.search)),
    ]
    return "\n\n".join(parts) + "\n"


def _in_python(texts: str) -> str:
    return f"""```python
from bertsecrets import load_pruned
from transformers import AutoTokenizer

folder = "<this folder>"
model, tokenizer = load_pruned(folder), AutoTokenizer.from_pretrained(folder)
output = model(**tokenizer({texts}, return_tensors="pt"))
```"""


def _in_onnx_runtime(file: str, texts: str) -> str:
    return f"""```python
import onnxruntime
from transformers import AutoTokenizer

folder = "<this folder>"
session = onnxruntime.InferenceSession(f"{{folder}}/{file}")
tokens = AutoTokenizer.from_pretrained(folder)({texts}, return_tensors="np")
(logits,) = session.run(["logits"], {{entry.name: tokens[entry.name] for entry in session.get_inputs()}})
```"""


def _table(table: Table) -> str:
    return f"{table.caption}:\n\n{markdown_table(table.header, table.rows)}"
