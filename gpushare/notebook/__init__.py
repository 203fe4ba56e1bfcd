"""gpushare in a notebook: what `%load_ext gpushare` and gpushare.enable() bring into an IPython session.

    magic        %gpushare
    view         what %gpushare shows, as text and as HTML
    session      everything in one IPython shell, from load to unload
    watch        the thread that waits for notices that borrowed memory is wanted back
    sigterm      the handler that makes the grace usable
    release      gives back memory that this process keeps and does not use
    previous_kernel  how the kernel before this one ended
    name         the notebook's name

A session gets this only if its user asks for it: by a kernel of `gpushare kernel install`, %load_ext, or enable().
"""
