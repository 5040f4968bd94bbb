"""What finished runs have written, of this library or another program; needs pandas and scipy alone."""
