"""The last stage: sets this study's figures beside the paper's tables, and shows everything on one page."""
