// Package fencegrpc takes fencing tokens over gRPC, to effects that are not in PostgreSQL: files, devices, other services. It is
// for gRPC what package fencehttp is for HTTP.
//
// Whoever holds the lock sends its token with each call; whoever guards the effect keeps a fence in PostgreSQL and refuses calls
// whose token is behind it.
//
//	// The holder: the grant travels in the context, and the interceptors put its token into the metadata.
//	conn, err := grpc.NewClient(target, creds,
//		grpc.WithUnaryInterceptor(fencegrpc.UnaryClient), grpc.WithStreamInterceptor(fencegrpc.StreamClient))
//	_, err = files.NewFilesClient(conn).Put(fence.NewContext(ctx, lease.Grant()), req)
//	if errors.Is(err, fence.ErrStale) { ... } // stop: the lease has ended, too
//
//	// The guard, in front of the handlers that have the effect. Interceptors that authenticate, or recover, come before it.
//	guard := fencegrpc.Guard{DB: pool, Fence: func(ctx context.Context, method string, req any) (lock, resource string) {
//		put, _ := req.(*filespb.PutRequest)
//		return "reports", put.GetName() // without a name there is no fence, and the call is refused
//	}}
//	server := grpc.NewServer(grpc.ChainUnaryInterceptor(guard.Unary()), grpc.ChainStreamInterceptor(guard.Stream()))
//
// # What is promised
//
//   - Once a call has passed with a token, none with an earlier one does, whatever becomes of its handler, of the connections
//     and of the server: the fence is raised and committed before the handler runs.
//   - While the handler of a call runs, no call with a later token runs beside it, as long as its connection to PostgreSQL
//     lives. The client's going away does not end that. The same token runs beside itself.
//   - A handler without an error was under the fence to its end, or the call is an error ([FenceLost]).
//   - A refusal ends the lease that the call was made under (see fence.Grant.OnStale).
//
// # What is not
//
//   - That a call which was sent under a lease arrives under it. A late one passes until a later token has been there.
//   - That a handler stops when the guard loses its connection to PostgreSQL. A later token may then run beside it.
//   - That what goes on after a handler has returned is under the fence: so it is with what an interceptor behind the guard has given up
//     after some time. One that does so belongs before the guard.
//   - That a later token gets its turn, where the lock lives in another database than the fence. It waits until no handler of an earlier
//     one runs: while their calls overlap, each beginning before the last has ended, they pass, and it waits on. Where they live together,
//     none is let in any more once it waits. A stream of a client that is stopped and not gone is open until the server
//     gives that up: see Time in package keepalive's ServerParameters, which is two hours unless it is set.
//   - That what a stream has sent is taken back. Its messages go out as the handler sends them; whether it was under the fence to
//     its end is known only by the status that the stream ends with.
//   - That the sender may use the lock. The token is no secret and no credential: authenticate calls as you would without it.
//
// # Codes
//
// A refusal has the code that the documentation of package codes has for what the client should do, and an ErrorInfo among its
// details, with [Domain] and one of these reasons. But for the last, no handler has run.
//
//   - [StaleToken]: Aborted, which is for failed checks of sequencers, and says to begin again further up: with the lock. The
//     ErrorInfo has both tokens, and says whether the lock service is behind (fence.ErrBehind).
//   - [MissingToken], [InvalidToken], [InvalidResource]: InvalidArgument, since the call is wrong whatever the state of the
//     system.
//   - [OtherLock]: FailedPrecondition. Somebody must put it right before the call can pass.
//   - [Unavailable]: Unavailable. This very call may be sent again, as it is.
//   - [FenceLost]: Unknown. The effect may be there, and that of a later token beside it: Aborted could be read as if it were
//     not there, and Unavailable has calls sent again.
//
// A call whose context ends while it waits is answered with DeadlineExceeded or Canceled. Errors of handlers pass as they are.
package fencegrpc
