// Package fencehttp takes fencing tokens over HTTP, to effects that are not in PostgreSQL: files, devices, other services.
//
// Whoever holds the lock sends its token with each request; whoever guards the effect keeps a fence in PostgreSQL and refuses
// requests whose token is behind it.
//
//	// The holder: the grant travels in the context, and the Transport puts its token into the header.
//	client := &http.Client{Transport: fencehttp.Transport{}}
//	req, err := http.NewRequestWithContext(fence.NewContext(ctx, lease.Grant()), http.MethodPut, url, body)
//
//	// The guard, in front of the handler that has the effect.
//	guard := fencehttp.Guard{DB: pool, Fence: func(r *http.Request) (lock, resource string) {
//		return "reports", r.URL.Path
//	}}
//	http.Handle("PUT /files/{name}", guard.Handler(files))
//
// # What is promised
//
//   - Once a request has passed with a token, none with an earlier one does, whatever becomes of the connections and of the
//     server that the handler runs in.
//   - While the handler of a request runs, no request with a later token runs beside it, as long as its connection to
//     PostgreSQL lives. The same token runs beside itself.
//   - A refusal ends the lease that the request was made under (see fence.Grant.OnStale).
//
// # What is not
//
//   - That a request which was sent under a lease arrives under it. A late one passes until a later token has been there.
//   - That a handler stops when the guard loses its connection to PostgreSQL. A later token may then run beside it.
//   - That a later token gets its turn, where the lock lives in another database than the fence. It waits until no handler of an
//     earlier one runs: while their requests overlap, each beginning before the last has ended, they pass, and it waits on. Where they
//     live together, none is let in any more once it waits.
//   - That the sender may use the lock. The token is no secret and no credential: authenticate requests as you would without it.
package fencehttp
