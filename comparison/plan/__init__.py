"""What is compared: arms with their roles, the runs of each, and the file that says so."""
