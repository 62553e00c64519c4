"""Every name of JAX or Orbax that is no documented public one. Each has a test, so an upgrade fails there."""

# The directory that Orbax writes an unfinished save into is `<step>` plus this.
ORBAX_TMP_SUFFIX = ".orbax-checkpoint-tmp"
