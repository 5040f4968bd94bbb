"""What a finished run is, and what several of them say together; needs pandas and scipy alone."""
