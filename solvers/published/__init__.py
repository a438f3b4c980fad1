"""Published methods, one file each; files with a leading underscore are shared by several."""
