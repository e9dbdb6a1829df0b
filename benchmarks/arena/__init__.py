"""Where contestants meet: each in a process of its own, checked against each other, and timed by turns."""
