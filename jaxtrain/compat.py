"""Every name of JAX or Orbax that is not a documented public one. Each has a test: an upgrade fails there, not in a run."""

import orbax.checkpoint as ocp

# The directory that an unfinished save writes into is `<step>` plus this.
ORBAX_TMP_SUFFIX: str = ocp.utils.TMP_DIR_SUFFIX
