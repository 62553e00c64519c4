"""Every name of JAX or Orbax that is no documented public one. Each has a test, so an upgrade fails there."""

import orbax.checkpoint as ocp

# The directory that an unfinished save writes into is `<step>` plus this.
ORBAX_TMP_SUFFIX: str = ocp.utils.TMP_DIR_SUFFIX
