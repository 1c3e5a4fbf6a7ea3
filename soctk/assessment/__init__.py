"""Whether a learned function can be trusted with decisions, measured on logged decisions that it has not seen."""
