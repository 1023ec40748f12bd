"""The services that routers and peers call, and the announcements to routers."""
