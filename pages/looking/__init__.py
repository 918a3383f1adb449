"""Loading of models, pictures and runs, with caches; selection of classes; inputs of the explanation methods."""
