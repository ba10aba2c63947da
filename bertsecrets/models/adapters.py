"""Load a PEFT adapter, such as LoRA, and merge it into its base model."""

import contextlib
import warnings
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from bertsecrets.errors import UserError
from bertsecrets.models.files import recorded_base


def merged(folder: Path, base: PreTrainedModel, name: str) -> PreTrainedModel:
    """The base model with an adapter merged into its weights.

    Args:
        folder: The adapter's folder.
        base: The model that it was trained on, modified in place.
        name: Of the base, for messages.

    Raises:
        UserError: If peft is not installed, the adapter does not fit the model, or it cannot be merged.
    """
    with contextlib.suppress(ImportError):
        import peft

        return _merged(peft, folder, base, name)
    raise UserError(f"'{folder}' is an adapter, which needs peft; run pip install 'bertsecrets[adapters]'.")


def _merged(peft: Any, folder: Path, base: PreTrainedModel, name: str) -> PreTrainedModel:
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
        if config.is_prompt_learning:
            raise UserError(
                f"Adapter '{folder}' adds tokens ({config.peft_type.value}) and changes no weights, so it cannot be "
                "merged; give a model fine-tuned with LoRA or in full."
            )
        with warnings.catch_warnings():
            # peft only warns about missing keys.
            warnings.filterwarnings("error", message="Found missing adapter keys")
            adapted = peft.PeftModel.from_pretrained(base, str(folder), config=config)
        model: PreTrainedModel = adapted.merge_and_unload(safe_merge=True)
    except UserError:
        raise
    # peft's errors (other modules, other shapes, numbers that are not finite) have no common base class.
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        base_name = recorded_base(folder)
        trained_on = f", trained on '{base_name}'," if base_name else ""
        raise UserError(
            f"Adapter '{folder}'{trained_on} does not fit model '{name}' ({reason}); give the "
            "model that it was trained on: model=folder model.path=<folder>, or bs.load(..., base=<folder>)."
        ) from error
    return model
