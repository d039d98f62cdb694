"""Documents that hold Python besides other things: notebooks, and Markdown with blocks of code."""
