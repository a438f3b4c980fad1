"""Published methods, one file each. Files with a leading underscore are shared by several methods."""
