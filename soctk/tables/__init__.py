"""Tables of logged decisions and of contexts: files, what their columns mean to a model, data to learn from."""
