"""A package, unlike its neighbours: the Jupyter Notebook is a package of the same name."""
