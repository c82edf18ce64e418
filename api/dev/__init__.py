"""``lastportion dev``: everything in one go on one machine, its servers included."""
