"""`gpushare dashboard`: a page in the browser, served to one user on localhost.

    access   who may ask: the token, the session, and the browser's own word about the page that asks
    about    who looks at the page, and where
    daemon   the connection to the node daemon, with the user's rights
    live     what changes, for the pages that are visible now
    relay    which calls of the daemon's API a page may make
    server   the HTTP server
    static/  the page, built from web/ by `make web`

Only `gpushare dashboard` imports daemon, live and server: they need aiohttp, which other commands do not wait for.
"""
