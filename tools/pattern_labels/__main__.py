"""Sample attention maps of runs or read saved ones, and import the labels that annotators give them.

python -m tools.pattern_labels sample <run folder> --folder <annotation folder> maps=72
python -m tools.pattern_labels sample <run folder> --folder <annotation folder> 'patterns=[diagonal,block]'
python -m tools.pattern_labels read bert-base-uncased.npz --folder <annotation folder>
python -m tools.pattern_labels import <annotation folder> <CSV file> ... --annotator <name>
python -m tools.pattern_labels compare <annotation folder> <CSV file>
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from bertsecrets.cli.build import make_data
from bertsecrets.cli.settings import read_settings
from bertsecrets.errors import UserError, choices
from bertsecrets.models.checkpoint import load_checkpoint
from bertsecrets.models.loading import load_model, load_tokenizer
from bertsecrets.models.spec import find_checkpoint
from bertsecrets.results.run import CHECKPOINT, INITIAL, Run, plain, read_config
from tools.pattern_labels.compare import compare_labels
from tools.pattern_labels.import_labels import import_labels
from tools.pattern_labels.labels import read_labels
from tools.pattern_labels.map_set import MapRow, MapSet
from tools.pattern_labels.page_and_sheets import check_imported, write_page, write_sheets
from tools.pattern_labels.sampling import Sampler, SampleSettings
from tools.pattern_labels.saved_maps import read_saved_maps


def sample(run_folder: Path, folder: Path, settings: SampleSettings, changes: Sequence[str] = ()) -> MapSet:
    """Add maps of a finished run to an annotation folder, and write its contact sheets and page anew.

    Args:
        run_folder: Folder of a training.
        folder: The annotation folder, which several runs may fill.
        settings: Which maps are sampled.
        changes: Settings of the run to change, as ``key=value``.

    Raises:
        UserError: If new sheets would replace labels that were not imported, or a setting does not fit.
    """
    check_imported(folder / "sheets", read_labels(folder))
    config = OmegaConf.merge(read_config(run_folder), OmegaConf.from_dotlist(list(changes)))
    assert isinstance(config, DictConfig)
    run_settings = read_settings(plain(config))
    task, spec, keys = run_settings.task, run_settings.model, run_settings.keys
    name = settings.evaluation or next(iter(task.evaluation))
    if name not in task.evaluation:
        raise UserError(f"Unknown evaluation set '{name}' of task '{task.name}'; {choices(name, task.evaluation)}.")
    dataset = make_data(run_settings, load_tokenizer(spec)).evaluation_dataset(name)
    models = {
        INITIAL: load_model(spec, task, keys.init, keys.seed),
        CHECKPOINT: load_checkpoint(find_checkpoint(run_folder), task, spec).model,
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for model in models.values():
        model.eval().to(device=device)
    earlier = MapSet.read(folder)
    rows, maps = Sampler(Run.open(run_folder), models, dataset, settings, progress=True).sample(earlier)
    if len(rows) < settings.maps:
        print(f"Only {len(rows)} of {settings.maps} maps were found; raise examples, or sample from other tasks.")
    return _add(folder, earlier, rows, maps, settings.passes)


def read(files: Sequence[Path], folder: Path, passes: int) -> MapSet:
    """Add saved maps to an annotation folder, and write its contact sheets and page anew.

    Args:
        files: As in :func:`~tools.pattern_labels.saved_maps.read_saved_maps`.
        folder: The annotation folder.
        passes: Number of passes with contact sheets.

    Raises:
        UserError: If new sheets would replace labels that were not imported, or a file does not hold maps.
    """
    check_imported(folder / "sheets", read_labels(folder))
    rows, maps = read_saved_maps(files)
    return _add(folder, MapSet.read(folder), rows, maps, passes)


def _add(folder: Path, earlier: MapSet, rows: Sequence[MapRow], maps: Mapping[str, Tensor], count: int) -> MapSet:
    all_maps = earlier.add(rows, maps)
    all_maps.write(folder)
    passes = range(1, count + 1)
    for number in passes:
        write_sheets(folder / "sheets" / f"pass{number}", all_maps, all_maps.names, number)
    write_page(folder / "annotate.html", all_maps, all_maps.names, passes)
    print(
        f"{folder} holds {len(all_maps.rows)} maps: label them in annotate.html or on the sheets, then import the "
        "labels."
    )
    return all_maps


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools.pattern_labels", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    sampling = commands.add_parser("sample", help="add maps of a run to an annotation folder")
    sampling.add_argument("run", type=Path, help="folder of a finished training")
    sampling.add_argument("settings", nargs="*", metavar="key=value", help=", ".join(SampleSettings.model_fields))
    sampling.add_argument(
        "--folder", type=Path, help="the annotation folder; patterns/ in the run's folder if left out"
    )
    sampling.add_argument(
        "--with", nargs="+", default=[], dest="changes", metavar="key=value", help="settings of the run"
    )
    reading = commands.add_parser("read", help="add saved maps to an annotation folder")
    reading.add_argument("files", type=Path, nargs="+", help=".npz files with the arrays attention and tokens")
    reading.add_argument("--folder", type=Path, required=True, help="the annotation folder")
    reading.add_argument("--passes", type=int, default=2, help="number of passes with contact sheets")
    importing = commands.add_parser("import", help="import labels into an annotation folder")
    importing.add_argument("folder", type=Path)
    importing.add_argument("files", type=Path, nargs="+")
    importing.add_argument("--annotator", help="annotator of the rows that name none")
    importing.add_argument("--votes", type=int, default=3, help="labels of a map on which the passes disagree")
    comparing = commands.add_parser("compare", help="compare a further annotator's labels with the consensus")
    comparing.add_argument("folder", type=Path)
    comparing.add_argument("file", type=Path)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parse(arguments)
    try:
        if parsed.command == "sample":
            values: Any = OmegaConf.to_container(OmegaConf.from_dotlist(parsed.settings))
            folder = parsed.folder or parsed.run / "patterns"
            sample(parsed.run, folder, SampleSettings.read("", values), parsed.changes)
        elif parsed.command == "compare":
            compare_labels(parsed.folder, parsed.file)
        elif parsed.command == "read":
            read(parsed.files, parsed.folder, parsed.passes)
        else:
            import_labels(parsed.folder, parsed.files, parsed.annotator, parsed.votes)
    except UserError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
