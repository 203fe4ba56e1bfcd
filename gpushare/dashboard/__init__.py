"""`gpushare dashboard`: a page in the browser, served to one user on localhost.

    access   who may ask: the token, the session, and the browser's own word about the page that asks
    about    who looks at the page, and where
    daemon   the connection to the node daemon or to the cluster's service, with the user's rights
    feed     what a page is told of the node, and of the cluster
    live     what changes, for the pages that are visible now
    relay    which calls of their APIs a page may make
    server   the HTTP server
    static/  the page, built from web/ by `make web`

    __main__ the server of a page for administrators, which the node daemon starts

Only these two import daemon, feed, live and server: they need aiohttp, which other commands do not wait
for.
"""
