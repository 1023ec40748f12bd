"""Authentication and authorisation: identities, certificates, API keys, and what each role may
do."""
