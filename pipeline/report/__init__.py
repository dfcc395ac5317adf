"""The last stage: the paper's tables with this study's figures beside them, and one page that shows everything."""
