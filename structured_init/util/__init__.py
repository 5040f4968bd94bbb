"""Named generators, linear algebra, names, errors and files: what every part of the library uses."""
