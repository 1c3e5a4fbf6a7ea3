"""The phases that a recipe is made of, one a file."""
