"""Who calls: identities, certificates, keys, and what each role may do."""
