"""LUKE, whose inputs are words and, for some tasks, entities."""

from bertsecrets.models.families.bert import Bert


class Luke(Bert):
    """As BERT, but it bypasses the library's attention interface; used with words only, as in text classification."""

    model_types = ("luke",)
    dropout = "dropout"
    # Queries between words and entities: a text of words does not use them, but they have rows for each head.
    position_maps = ("w2e_query", "e2w_query", "e2e_query")
    other_positions = ("entity_ids",)
