"""Every name of JAX, Orbax or ml_collections that is not public. Each has a test, so an upgrade fails there."""

from typing import Any

from ml_collections import config_dict

# The directory that Orbax writes an unfinished save into is `<step>` plus this.
ORBAX_TMP_SUFFIX = ".orbax-checkpoint-tmp"


def items_as_set(group: config_dict.ConfigDict) -> list[tuple[Any, Any]]:
    """Give (key, value or FieldReference) in the order of the config file: a ConfigDict itself sorts by key."""
    return list(vars(group)["_fields"].items())
