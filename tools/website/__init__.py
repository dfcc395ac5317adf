"""What the site shows beyond the Markdown files of docs/: `make docs`."""
