"""Settings of all tests."""

from hypothesis import settings

# No deadline: a busy machine is no failure. A failing example is printed with the line that repeats it.
settings.register_profile("project", deadline=None, max_examples=50, print_blob=True)
settings.load_profile("project")
