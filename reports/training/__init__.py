"""The values and words of a training's report: its losses, its cost, and predicted against actual numbers.

training_facts: a training from its folder, and the check of its adapter
sentences: its sentences and titled numbers, and the command to continue with
comparison: two trainings compared by their held-out losses per example
"""
