"""Other servers that answer for some models: which, how they are asked, and whether they are well."""
