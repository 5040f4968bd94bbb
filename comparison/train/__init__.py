"""From planned runs to trained ones: where they are launched, what one does, and when it stops."""
