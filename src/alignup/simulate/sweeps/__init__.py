"""Runs cluster simulations for every combination of machines, configurations, strategies and seeds.

``spec`` reads what to combine, ``tasks`` runs one combination, ``engines`` run many of them in this process, in
several, or on a Dask cluster, and ``results_file`` keeps each result as soon as it is known.
"""
