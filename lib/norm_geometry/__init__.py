"""The geometry of layer normalization: the maps themselves, and their measurement in language models.

    from norm_geometry import norms, statistics          # numpy or torch, nothing else is loaded
    from norm_geometry import hooks, models, measure     # a real model: needs torch and transformers

Importing the package loads none of its modules.
"""
