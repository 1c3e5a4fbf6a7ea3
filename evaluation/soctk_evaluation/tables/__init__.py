"""From rows to tables, pages and pictures."""
