"""gpushare in a notebook: what `%load_ext gpushare` and gpushare.enable() bring into an IPython session.

    magic        %gpushare
    view         what %gpushare shows, as text and as HTML
    session      what is in one shell, from load to unload
    watch        the thread that hears when borrowed memory is wanted back
    sigterm      the handler that makes the grace usable
    release      giving back what this process keeps and does not use
    earlier      how the kernel before this one ended
    name         what the notebook is called

Only a session that the user has chosen gets any of this: a kernel of `gpushare kernel install`, %load_ext, or enable().
"""
