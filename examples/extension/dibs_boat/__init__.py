"""An example extension of DIBS."""
